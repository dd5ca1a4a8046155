"""Formulas of task files, as the parent side imports them; the evaluator is shared with the children."""

from fk_core.child.formulas import FormulaError, evaluate, names

__all__ = ["FormulaError", "evaluate", "names"]
