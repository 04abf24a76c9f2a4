"""What to fix in the delivery of responses: findings with their texts, and the rules for those that follow from the
server's own records. Imports nothing of the package.
"""
