"""Sign-in by OpenID Connect: the authorization code flow with PKCE, at one identity provider.

Invariants: the provider is asked by sign-ins alone. What it says counts once its signature, issuer,
audience, times and nonce were checked; from then on there is a session as any other.
"""
