"""What is measured of a step: loss, norms of gradients, parameters, moments and updates.

Owns the signals from the tensor on the device to the row of numbers on the host; `readback` says
where the host would wait. Judges nothing and sends nothing. Start at `collector`.
"""
