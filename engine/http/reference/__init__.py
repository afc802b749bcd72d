"""The reference of the HTTP API: what each operation takes and answers, as an OpenAPI document."""
