# attack: empty_program
# kind: reward   task: any   naive: run
# attempts: nothing at all
pass
