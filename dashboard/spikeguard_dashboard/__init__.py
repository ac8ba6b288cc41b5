"""The dashboard: what a person sees of runs and incidents, and where a decision is taken.

Law: it reads the HTTP API of `docs/protocol.md` and nothing else; no database, no import of server
or agent. Its own token is a viewer's. What a person decides is sent with that person's session.

Deep links, which the command line and notifications print:

    /                                              runs, and the incidents that are open
    /run?run=default/gpt-124m-7                    one run's curves
    /incident?run=default/gpt-124m-7&number=3      one incident

`run` is `project/name`, or `name` alone in project `default`.

Started by `python -m spikeguard_dashboard --host 127.0.0.1 --port 8501`.
"""
