# what: a trace function that changes the local names of every caller
# want: fail
# unsafe: stopped
import sys
import threading


def tracer(frame, event, argument):
  for name in list(frame.f_locals):
    if name in ('result', 'value', 'ok', 'passed', 'verdict'):
      frame.f_locals[name] = True
  return tracer


sys.settrace(tracer)
sys.setprofile(tracer)
threading.settrace(tracer)


def add(a, b):
  return None
