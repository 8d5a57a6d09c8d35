"""Writers that commit out of order, and a reader that must not skip anything of theirs."""
