"""Start of a process in a sandbox: sets its limits, then runs its program.

  start.main(ROLE, LIMITS, FILE, ...)

LIMITS are the bytes of address space, the processes, the bytes of a file and
the open files, joined by commas; RLIMIT_CPU is in `frames.limit_cpu`, by test.
"""

import os


def main(role, limits, file, *more):
  """Runs a program, or one side of its tests.

  Args:
    role: 'run', 'candidate' or 'checker'.
    limits: see the top of this file.
    file: path of the program; not for 'checker'.
    *more: seconds for 'run'; for 'candidate' descriptors to read and write, and
      the processor seconds of a test; for 'checker' see `checker.serve`.
  """
  import resource
  memory, processes, size, descriptors = map(int, limits.split(','))
  for what, most in (
      (resource.RLIMIT_AS, memory), (resource.RLIMIT_NPROC, processes),
      (resource.RLIMIT_FSIZE, size), (resource.RLIMIT_NOFILE, descriptors),
      (resource.RLIMIT_CORE, 0)):
    try:
      resource.setrlimit(what, (most, most))
    except (OSError, ValueError):  # macOS has no limit of the address space
      pass
  os.environ.clear()
  if role == 'run':
    import frames
    frames.limit_cpu(float(more[0]))
    module, source = frames.main_module(file)
    exec(compile(source, file, 'exec', dont_inherit=True), module.__dict__)
  elif role == 'checker':
    import checker
    checker.serve(*map(int, more))
  else:
    import candidate
    candidate.main(file, int(more[0]), int(more[1]), float(more[2]))
