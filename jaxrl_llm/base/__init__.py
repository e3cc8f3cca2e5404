"""Modules that every part may use. They import no other part."""
