"""The audit of one paper (arXiv:2605.11287) with `toa`: its numbers, its theory, and what our records say about it.

    published, tables   the published numbers, and the runs that reproduce them
    demixing            harmonic demixing: signals, task, experiment
    theory              Proposition 1 of the paper and its cases
    report              the comparison of records with the paper, and what was found
    demo                three small tasks, from signals to a page
    protocols           settings of the demixing runs
    cli                 the commands reproduce, report, theory, demix and demo of `toa`

`toa` never imports this package. It finds the commands, the task and the protocols by the entry points that this
package registers.
"""
