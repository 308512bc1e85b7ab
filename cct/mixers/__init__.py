"""Token mixers.

A mixer is built as ``Mixer(dim, tokens, heads, grid, prefix, dropout, **settings)`` and maps
(B, N, D) to (B, N, D), where N = tokens and D = dim. ``grid`` is (height, width) of the token
grid, ``prefix`` the number of tokens before it (so N = height * width + prefix), ``dropout`` the
model's attention dropout. These sizes come from the model; the settings are keyword-only, have no
defaults in Python, and come from ``conf/mixer/*.yaml``.

A mixer that has a map offers it as ``mixer.map(x)``: (B or 1, heads, N, N), rows summing to one.
"""
