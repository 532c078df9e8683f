"""The overview of a plan, on one screen.

- `purposes`: what each value is in the program: weights, saved for the backward pass, …;
- `overview`: the figures: total and room on the device, bytes by purpose, the largest by line;
- `overview_lines`: the same as lines of text, at most 40;
- `named_lines`: all about one value, one source line or one argument, by name;
- `source_text`: the text of a source line, if its file exists.
"""
