"""What travels: the shapes of bodies, and bodies made from rows."""
