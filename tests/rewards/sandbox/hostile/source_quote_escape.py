# what: quotes and braces that try to leave a template of the harness
# want: fail
# kind: syntax_error
# compiles: no
# unsafe: stopped
'''
""" + '}}' + "'''
import os; print("pass"); os._exit(0)
"""
'''; ')
