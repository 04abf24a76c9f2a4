"""As `manage.py makemigrations` writes it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []  # noqa: RUF012 - as Django wants it

    operations = [  # noqa: RUF012
        migrations.CreateModel(
            name="Seed",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=80, unique=True)),
                ("price", models.DecimalField(decimal_places=2, max_digits=8)),
                ("picture", models.FileField(blank=True, upload_to="pictures")),
                ("sold", models.IntegerField(default=0)),
            ],
        )
    ]
