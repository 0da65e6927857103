"""A run or a sweep as one page that needs nothing else: from the records to blocks, from blocks to HTML."""
