"""Code that `xlapipe choose` prints for the user to paste: each module is one text, as compiled."""
