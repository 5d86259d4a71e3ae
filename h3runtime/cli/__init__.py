"""The command line: one module per command, `options` for the flags they share, `report` for what they say,
`report_files` for where they write it, `remote` for those that ask a server; `comparison` is the work of `compare`,
`inspection`, `planning` and `model_list` are what `inspect`, `plan` and `models` show.

Top of the import order: the only code that wires api, jobs and engine together. Commands import the heavy half (torch)
when they run, not before, so that `--help` and a mistyped flag answer at once.
"""
