"""Request and response bodies: their shapes, and bodies made from rows."""
