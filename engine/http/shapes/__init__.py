"""Types of the JSON that the HTTP API takes and answers, from which its reference is made (engine/http/reference/)."""
