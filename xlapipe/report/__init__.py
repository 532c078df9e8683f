"""Plans as JSON and as text: functions from data to data; nothing here prints."""
