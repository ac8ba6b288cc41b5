"""The server's HTML pages, without scripts: sign in, inbox, incident, decide, act.

Approving never depends on the dashboard. GET shows, POST acts; everything that comes from outside
is escaped; a form works only from the page it was made for.
"""
