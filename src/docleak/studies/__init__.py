"""What can be measured. A study is a frozen configuration, its units, how one is computed, and how a run of it reads.

A new one is a file: see ``study.Study``; ``registry`` finds it by name, or as "module:Class" in somebody else's file.
"""
