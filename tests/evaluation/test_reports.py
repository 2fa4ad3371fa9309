"""A report is one text, as Markdown in its folder and for a terminal."""

import json

from specsamp.evaluation.reporting.report import Figure, Report, Table


def test_a_report(tmp_path, capsys):
  report = Report('Title', 'python run.py', packages=['pytest'])
  table = Table([{'a': 1.0, 'b': 2.0}, {'b': 0.125}], column_digits={'b': 3})
  report.add('A note.', '## Heading', table, Figure('plot.png'))
  report.details.append('Small print.')
  report.write(tmp_path, {'runs': [1]})
  text = (tmp_path / 'report.md').read_text()
  parts = [
    '# Title', 'A note.', '## Heading', '| 1.00 | 2.000 |', '|      | 0.125 |',
    '![plot](plot.png)', 'Small print.', f'On {report.device}.',
    '```sh\npython run.py\n```',
  ]  # fmt: skip
  places = [text.index(part) for part in parts]
  assert places == sorted(places)
  summary = json.loads((tmp_path / 'summary.json').read_text())
  assert summary['runs'] == [1] and 'pytest' in summary['versions']
  assert summary['device'].endswith('CPU') and report.device in text
  report.show(tmp_path)
  shown = capsys.readouterr().out
  assert shown.startswith('A note.\n\nHeading\n\n') and '2.000' in shown
  assert shown.endswith(f'\n\nReport: {tmp_path / "report.md"}\n')
  assert '|' not in shown and 'plot' not in shown and 'Small' not in shown


def test_a_report_without_measurements(tmp_path):
  report = Report('Plan', device='')
  report.write(tmp_path, {'times': []})
  assert 'On ' not in (tmp_path / 'report.md').read_text()
  assert 'device' not in json.loads((tmp_path / 'summary.json').read_text())
