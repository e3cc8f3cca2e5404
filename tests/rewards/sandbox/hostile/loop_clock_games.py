# what: replaces the clocks of time and the alarm calls, then spins
# want: fail
# kind: timeout
# unsafe: stopped
import signal
import time

clock = time.monotonic
end = clock() + 60
for name in ('time', 'monotonic', 'perf_counter', 'process_time', 'sleep'):
  setattr(time, name, lambda *args: 0.0)
signal.alarm = signal.setitimer = lambda *args: 0
signal.signal = lambda *args: None


def add(a, b):
  while clock() < end:
    pass
  return a + b
