"""The reference of the terminal rows: terminado, with one new terminal for each connection. Prints its port."""

import asyncio
import sys

import tornado.httpserver
import tornado.netutil
import tornado.web
from terminado import TermSocket, UniqueTermManager


async def main():
    manager = UniqueTermManager(shell_command=sys.argv[1:])
    sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
    handlers = [(r"/ws", TermSocket, {"term_manager": manager})]
    tornado.httpserver.HTTPServer(tornado.web.Application(handlers)).add_sockets(sockets)
    print(sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
