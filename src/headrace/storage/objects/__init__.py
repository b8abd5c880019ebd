"""The engine over an object store: SlateDB holds the records of OpenData-Queue. Files of one machine are in local/."""
