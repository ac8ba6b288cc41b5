"""Who is signed in and what they may use: tokens, sessions, people, sign-in by OIDC or a proxy.

Owns every change of a grant with its entry in the audit. What a role may call is judged in
`identity`. Must not know HTTP. Start at `grants`.
"""
