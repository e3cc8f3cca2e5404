"""Jobs of the programs: training, evaluation, supervised fine-tuning, export.

A program checks its arguments and its config before it imports its job, which
takes seconds.
"""
