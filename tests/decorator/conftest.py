"""Databases as the binding tests have them."""

from tests.binding.conftest import database as database
from tests.binding.conftest import mariadb as mariadb
from tests.binding.conftest import postgres as postgres
from tests.binding.conftest import shared_mariadb_url as shared_mariadb_url
from tests.binding.conftest import shared_postgres_url as shared_postgres_url
from tests.binding.conftest import sqlite as sqlite
