"""What stands around the optimizers' steps: skipping an update, scaling the rate, clipping.

Owns how watched optimizers are found and wrapped. Reads no device value on the host, but where
`skip_by_sync` asks for it. Start at `update_skipper`.
"""
