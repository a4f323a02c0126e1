# benign: own_exceptions
# must pass: exceptions caught, chained, in groups, printed by traceback
import io
import traceback

class Mine(ValueError):
    pass

try:
    try:
        1 / 0
    except ZeroDivisionError as fault:
        raise Mine("x") from fault
except Mine as fault:
    text = io.StringIO()
    traceback.print_exception(fault, file=text)
    print("ZeroDivisionError" in text.getvalue(), isinstance(fault.__cause__, ZeroDivisionError))
