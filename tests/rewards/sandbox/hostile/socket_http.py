# what: asks the port on the host and a cloud's metadata over HTTP
# want: fail
# kind: wrong
# unsafe: open
import http.client

won = False
for host, port in (
  ('127.0.0.1', int('{{PORT}}')),
  ('169.254.169.254', 80),
  ('metadata.google.internal', 80),
):
  try:
    link = http.client.HTTPConnection(host, port, timeout=1)
    link.request('GET', '/')
    won = True
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
