"""Files that ``holdfast new`` writes, as templates: ``$name`` stands for what depends on the choices made."""
