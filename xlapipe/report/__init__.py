"""Plans as JSON and as text: functions from data to data; nothing here prints.

Modules are named for what they return: `*_figures.py` the JSON of a command, `*_lines.py` its lines
for a terminal; `donation_lines.py`, `collective_lines.py` and `findings.py` return both. What
`xlapipe report` shows is a `Page` of sections with tables of cells (`pages.py`, `cells.py`), which
`pages.py` renders for a terminal, and `html_page.py` as HTML; `plan_figures.py` makes the JSON.
`overview/` is the plan on one screen, and `failures/` reads what a run printed when it ran out of
memory.

To add a section to `xlapipe report`:

1. `plan_page.py`: a function of an `XlaSubject` or its plan, for a `Section` of `plan_page`.
2. `html_page.py`: its title for the navigation, in `SECTIONS`. A section that is more than lines
   and tables has a template in `html/sections/`.
3. `plan_figures.py`: a key for it in `figures_of`; `records.py` states how JSON renders records.
4. `tests/report/test_report_data.py` and `test_report_text.py`: its figures.
"""
