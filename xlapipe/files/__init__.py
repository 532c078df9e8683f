"""Files and text that come from outside: the only package that opens, unpacks and writes them.

- `contents`: reads regular files, within limits of size, compression and JSON;
- `writing`: writes files and folders completely or not at all;
- `typed_data`: checks the data of a JSON file against the annotations of a dataclass;
- `visible_text`: makes text from a file safe to show.
"""
