# benign: many_modules
# must pass: what programs import: sqlite in memory, zoneinfo, csv, xml, difflib, array, secrets, logging, argparse
import argparse, array, calendar, contextlib, csv, ctypes, datetime, difflib, email, html, inspect, io, locale, logging, mmap, numbers, os, pathlib
import pickle, platform, pprint, queue, secrets, select, selectors, shutil, signal, socket, sqlite3, ssl, string, struct, subprocess, sys, tempfile
import threading, time, timeit, traceback, types, unicodedata, unittest, urllib.parse, warnings, weakref, xml.etree.ElementTree as tree, zlib

base = sqlite3.connect(":memory:")
base.execute("create table t (n integer)")
base.executemany("insert into t values (?)", [(n,) for n in range(10)])
print(base.execute("select sum(n) from t").fetchone()[0], datetime.date(2024, 2, 29).isoformat(), tree.fromstring("<a b='1'/>").get("b"))
print(next(csv.reader(["x,y"])), unicodedata.name("é"), struct.calcsize("q"), time.gmtime(0).tm_year, secrets.token_hex(2) != "")
