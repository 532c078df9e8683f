"""Plans as JSON and as text: functions from data to data; nothing here prints.

Modules are named for what they return: `*_figures.py` the JSON of a command, `*_lines.py` its lines
for a terminal; `donation.py`, `collectives.py` and `findings.py` return both. `xlapipe report` is
made by `json_data.py`, `html_page.py` and `markdown.py` from `sections/`. `overview/` is the plan
on one screen, and `failures/` reads what a run printed when it ran out of memory.

To add a section to `xlapipe report`:

1. `sections/NAME.py`: a function from an `Opened` or its plan to records; `records.py` states how
   JSON renders them.
2. `json_data.py`: a key for it in `dump_data`. HTML and Markdown render that data.
3. `html/sections/NAME.html.j2`: its HTML, and an entry in `SECTIONS` of `html_page.py`.
4. `markdown.py`: a function `_NAME` with its Markdown, called in `_dump`.
5. `tests/report/test_report_data.py` and `test_report_text.py`: its figures.
"""
