"""The paper's toy experiment."""
