# attack: prints_every_answer
# kind: verdict   task: stdio   naive: run
# attempts: print so many numbers that the right one is among them
print("\n".join(map(str, range(-10, 1000))))
print(3, 6, end="")
