"""The generator of fixtures and of the demo drafter."""
