"""The pages, each a function that Streamlit calls.

Law: what they decide or compute lies in `words`, `charts`, `history`; what they fetch in `client`.
"""
