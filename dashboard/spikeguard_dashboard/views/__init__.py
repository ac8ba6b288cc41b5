"""The pages, each a function that Streamlit calls."""
