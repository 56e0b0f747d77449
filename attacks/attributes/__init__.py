"""What is the attribute of a row that its reader does not know, the classes of a client's rows?"""
