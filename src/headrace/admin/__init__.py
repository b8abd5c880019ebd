"""HTTP: health, metrics, our API, RabbitMQ's management paths, the dashboard. Core moves the messages."""
