# attack: output_tricks
# kind: verdict   task: stdio   naive: run
# attempts: nothing but blanks, carriage returns and back spaces, so that tokens vanish
print(" \t\r\n\x0b\x0c\x1c\x1d\x85\xa0\u2003\u200b\ufeff\x00", end="")
