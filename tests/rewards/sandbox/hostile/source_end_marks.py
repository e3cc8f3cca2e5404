# what: marks of the end of input in the text: ^D, ^Z, __END__, heredocs
# want: pass
# kind: correct
# unsafe: stopped
ENDS = '''
EOF
END
__END__
exit
\x04 \x1a
'''


def add(a, b):
  return a + b
