"""A small workspace in several languages, for tests of what looks code up by name."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "pkg/client.py": '''"""Doc."""

LIMIT = 3


class Client:
    """A client."""

    # tries again
    @staticmethod
    def retry(n):
        return n

    def send(self):
        return self.retry(LIMIT)
''',
    "pkg/server.py": """from pkg.client import Client


class Server(Client):
    def retry(self):
        pass


def send():
    return Client().send()
""",
    "src/net.rs": """/// A connection.
pub struct Conn { fd: i32 }

impl Conn {
    pub fn open(&self) -> i32 { self.fd }
}

pub trait Wire { fn open(&self) -> i32; }

const LIMIT: usize = 3;
""",
    "src/pool.rs": """use crate::net::{Conn, Wire};

pub fn fill(conn: &Conn) -> i32 { conn.open() }

impl Wire for Pool {
    fn open(&self) -> i32 { fill(&self.conn) }
}
""",
    "web/view.ts": """export class View {
  render(): string { return paint(1) }
}

export const paint = (n: number) => `${n}`
export enum Shade { Dark }
""",
    "web/page.ts": """import { View, paint } from "./view";

export class Page extends View {
  show(): string { return this.render() + paint(2) }
}
""",
    "store/store.go": """package store

type Store struct{ n int }

// Get reads.
func (s *Store) Get(k string) int { return s.n }

func Open() *Store { return nil }
""",
    "cmd/main.go": """package main

import "example.com/app/store"

func main() { store.Open().Get("k") }
""",
    "src/main/java/app/Order.java": """package app;

class Order extends Thing {
    int total() { return total(1); }
    int total(int x) { return x; }
}
""",
    "lib/list.c": """struct list { int n; };

int list_size(struct list *l) { return l->n; }
#define LIST_MAX 10
""",
    "lib/use.c": """#include "list.h"

int twice(struct list *l) { /* list_size */ return 2 * list_size(l) < LIST_MAX; }
""",
}


def write_tree(folder: Path) -> Path:
    """Write all files below the folder, and return it."""
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder
