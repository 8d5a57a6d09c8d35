"""Tests of Holdfast. A package, so that tests share `tests.components` by import."""
