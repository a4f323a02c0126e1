# benign: unicode
# must pass: letters of many scripts in and out
text = input()
print(text[::-1], len(text), text.upper())
