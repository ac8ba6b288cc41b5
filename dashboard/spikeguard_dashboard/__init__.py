"""The dashboard: what a person sees of runs and incidents.

It reads the HTTP API of `docs/protocol.md` and nothing else; no database, no import of server or
agent. It has no token of its own: it reads with that of who is signed in at the server.

Deep links, which the command line and notifications print:

    /                                              runs, and the incidents that are open
    /run?run=default/gpt-124m-7                    one run's curves
    /incident?run=default/gpt-124m-7&number=3      one incident

`run` is `project/name`, or `name` alone in project `default`.

Started by `python -m spikeguard_dashboard --host 127.0.0.1 --port 8501`.
"""
