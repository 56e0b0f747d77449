"""What is the one attribute of a row that its reader does not know?"""
