gunicorn -m 007 -g www-data -b unix:/run/shop/app.sock -b 127.0.0.1:8000 shop.wsgi:application
