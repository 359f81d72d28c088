"""A name server on loopback that says what a test tells it."""

from __future__ import annotations

import asyncio

import dns.flags
import dns.message
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset


class FakeDns(asyncio.DatagramProtocol):
    """``records`` maps (name, type) to texts; a name that is not there does not exist. ``rcode`` stands for all."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl = 1
        self.rcode: int | None = None
        self.silent = False
        self.asked = 0
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None

    async def start(self) -> FakeDns:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        self.port = self._transport.get_extra_info("sockname")[1]
        return self

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.asked += 1
        if self.silent or self._transport is None:
            return
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query, recursion_available=True)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)
        found = self.records.get((name, kind))
        if self.rcode is not None:
            answer.set_rcode(dns.rcode.Rcode(self.rcode))
        elif found:
            answer.answer.append(
                dns.rrset.from_text_list(question.name, self.ttl, dns.rdataclass.IN, question.rdtype, found)
            )
        elif not any(known == name for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(answer.to_wire(), addr)
